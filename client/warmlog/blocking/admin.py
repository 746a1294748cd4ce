"""The blocking admin client."""

from typing import Any

from warmlog.admin import admin
from warmlog.blocking.client import BlockingClient, options_of, waiting


class Admin(BlockingClient[admin.Admin]):
    """Manages topics, partitions, groups, transactions, users, rights and quotas: `warmlog.Admin` without `await`."""

    @options_of(admin.Admin)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(admin.Admin(*arguments, **options))

    create_topic = waiting(admin.Admin.create_topic)
    alter_topic = waiting(admin.Admin.alter_topic)
    add_partitions = waiting(admin.Admin.add_partitions)
    delete_topic = waiting(admin.Admin.delete_topic)
    list_topics = waiting(admin.Admin.list_topics)
    topic_names = waiting(admin.Admin.topic_names)
    describe_topic = waiting(admin.Admin.describe_topic)
    describe_broker = waiting(admin.Admin.describe_broker)
    alter_broker = waiting(admin.Admin.alter_broker)
    broker_info = waiting(admin.Admin.broker_info)
    describe_log_dirs = waiting(admin.Admin.describe_log_dirs)
    move_partition = waiting(admin.Admin.move_partition)
    list_offsets = waiting(admin.Admin.list_offsets)
    look_up_offsets = waiting(admin.Admin.look_up_offsets)
    delete_records = waiting(admin.Admin.delete_records)
    list_groups = waiting(admin.Admin.list_groups)
    describe_group = waiting(admin.Admin.describe_group)
    committed_offsets = waiting(admin.Admin.committed_offsets)
    group_lags = waiting(admin.Admin.group_lags)
    reset_offsets = waiting(admin.Admin.reset_offsets)
    delete_groups = waiting(admin.Admin.delete_groups)
    delete_offsets = waiting(admin.Admin.delete_offsets)
    list_transactions = waiting(admin.Admin.list_transactions)
    describe_transaction = waiting(admin.Admin.describe_transaction)
    abort_transaction = waiting(admin.Admin.abort_transaction)
    create_user = waiting(admin.Admin.create_user)
    create_token = waiting(admin.Admin.create_token)
    rotate_user = waiting(admin.Admin.rotate_user)
    rotate_token = waiting(admin.Admin.rotate_token)
    delete_user = waiting(admin.Admin.delete_user)
    list_users = waiting(admin.Admin.list_users)
    create_acls = waiting(admin.Admin.create_acls)
    delete_acls = waiting(admin.Admin.delete_acls)
    describe_acls = waiting(admin.Admin.describe_acls)
    check_acl = waiting(admin.Admin.check_acl)
    alter_quotas = waiting(admin.Admin.alter_quotas)
    describe_quotas = waiting(admin.Admin.describe_quotas)
    epoch_ends = waiting(admin.Admin.epoch_ends)
    describe_status = waiting(admin.Admin.describe_status)
    describe_partitions = waiting(admin.Admin.describe_partitions)
    trace_index = waiting(admin.Admin.trace_index)
