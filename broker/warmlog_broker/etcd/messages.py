"""etcd's messages, as far as a cluster uses them.

The numbers of the fields are those of etcd's public interface (`etcdserverpb`, the same in 3.4 to 3.6). Fields that are
not in the table are skipped by the reader and never sent.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from warmlog_broker.etcd.coordination import Item

_PACKAGE = "etcdserverpb"

_FIELDS = {
    "ResponseHeader": "3 int64 revision",
    "KeyValue": "1 bytes key, 2 int64 create_revision, 3 int64 mod_revision, 5 bytes value",
    "Event": "1 int32 type, 2 KeyValue kv",
    "RangeRequest": "1 bytes key, 2 bytes range_end, 3 int64 limit, 4 int64 revision",
    "RangeResponse": "1 ResponseHeader header, 2 repeated KeyValue kvs, 3 bool more",
    "PutRequest": "1 bytes key, 2 bytes value, 3 int64 lease",
    "DeleteRangeRequest": "1 bytes key, 2 bytes range_end",
    "RequestOp": "1 RangeRequest request_range, 2 PutRequest request_put, 3 DeleteRangeRequest request_delete_range",
    "ResponseOp": "1 RangeResponse response_range",
    "Compare": "1 int32 result, 2 int32 target, 3 bytes key, 5 int64 create_revision, 6 int64 mod_revision",
    "TxnRequest": "1 repeated Compare compare, 2 repeated RequestOp success, 3 repeated RequestOp failure",
    "TxnResponse": "1 ResponseHeader header, 2 bool succeeded, 3 repeated ResponseOp responses",
    "WatchCreateRequest": "1 bytes key, 2 bytes range_end, 3 int64 start_revision, 8 bool fragment",
    "WatchProgressRequest": "",
    "WatchRequest": "1 WatchCreateRequest create_request, 3 WatchProgressRequest progress_request",
    "WatchResponse": "4 bool canceled, 5 int64 compact_revision, 6 string cancel_reason, 7 bool fragment, "
    "11 repeated Event events",
    "LeaseGrantRequest": "1 int64 TTL",
    "LeaseGrantResponse": "2 int64 ID",
    "LeaseRevokeRequest": "1 int64 ID",
    "LeaseRevokeResponse": "",
    "LeaseKeepAliveRequest": "1 int64 ID",
    "LeaseKeepAliveResponse": "3 int64 TTL",
    "AuthenticateRequest": "1 string name, 2 string password",
    "AuthenticateResponse": "2 string token",
}

EQUAL = 0
"""Compare.result"""
CREATE, MOD = 1, 2
"""Compare.target"""
DELETED = 1
"""Event.type"""


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="warmlog/etcd.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for field in filter(None, fields.split(", ")):
            number, *repeated, kind, name = field.split(" ")
            added = described.field.add(name=name, number=int(number))
            added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
            if kind in _FIELDS:
                added.type, added.type_name = added.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = getattr(added, f"TYPE_{kind.upper()}")
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_described())


def message(name: str) -> Any:
    """Return the class of a message of the table."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def item_of(found: Any) -> Item:
    return Item(found.key.decode(), found.value, found.create_revision, found.mod_revision)
