"""The table that joins requests and responses, and the error response that any request may get."""

from msgspec import Struct

from warmlog_protocol.messages import (
    fetch,
    inspection,
    log_dirs,
    metadata,
    offsets,
    produce,
    replication,
    splits,
    topics,
)
from warmlog_protocol.messages.access import acls, authenticate, quotas
from warmlog_protocol.messages.base import ApiKey, Message
from warmlog_protocol.messages.coordinators import finding, groups, jobs, transactions


class ErrorResponse(Message, frozen=True):
    """The body of every response whose error code is not NONE."""

    message: str


class Api(Struct, frozen=True):
    """One row of the table."""

    key: ApiKey
    request: type[Message]
    response: type[Message]
    min_version: int = 0
    max_version: int = 0

    @property
    def name(self) -> str:
        """As in the documentation: "CreateTopics"."""
        return self.request.__name__.removesuffix("Request")


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.HANDSHAKE, metadata.HandshakeRequest, metadata.HandshakeResponse),
        Api(ApiKey.AUTHENTICATE, authenticate.AuthenticateRequest, authenticate.AuthenticateResponse),
        Api(ApiKey.METADATA, metadata.MetadataRequest, metadata.MetadataResponse),
        Api(ApiKey.CREATE_TOPICS, topics.CreateTopicsRequest, topics.CreateTopicsResponse),
        Api(ApiKey.DELETE_TOPICS, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
        Api(ApiKey.ALTER_TOPICS, topics.AlterTopicsRequest, topics.AlterTopicsResponse),
        Api(ApiKey.CREATE_PARTITIONS, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
        Api(ApiKey.DESCRIBE_CONFIGS, topics.DescribeConfigsRequest, topics.DescribeConfigsResponse),
        Api(ApiKey.INIT_PRODUCER_ID, produce.InitProducerIdRequest, produce.InitProducerIdResponse),
        Api(ApiKey.PRODUCE, produce.ProduceRequest, produce.ProduceResponse),
        Api(ApiKey.FETCH, fetch.FetchRequest, fetch.FetchResponse),
        Api(ApiKey.LIST_OFFSETS, offsets.ListOffsetsRequest, offsets.ListOffsetsResponse),
        Api(ApiKey.DELETE_RECORDS, offsets.DeleteRecordsRequest, offsets.DeleteRecordsResponse),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, offsets.OffsetForLeaderEpochRequest, offsets.OffsetForLeaderEpochResponse),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, log_dirs.AlterReplicaLogDirsRequest, log_dirs.AlterReplicaLogDirsResponse),
        Api(ApiKey.DESCRIBE_LOG_DIRS, log_dirs.DescribeLogDirsRequest, log_dirs.DescribeLogDirsResponse),
        Api(ApiKey.FIND_COORDINATOR, finding.FindCoordinatorRequest, finding.FindCoordinatorResponse),
        Api(ApiKey.OFFSET_COMMIT, groups.OffsetCommitRequest, groups.OffsetCommitResponse),
        Api(ApiKey.OFFSET_FETCH, groups.OffsetFetchRequest, groups.OffsetFetchResponse),
        Api(ApiKey.GROUP_HEARTBEAT, groups.GroupHeartbeatRequest, groups.GroupHeartbeatResponse),
        Api(ApiKey.LIST_GROUPS, groups.ListGroupsRequest, groups.ListGroupsResponse),
        Api(ApiKey.DESCRIBE_GROUPS, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
        Api(ApiKey.DELETE_GROUPS, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
        Api(ApiKey.DELETE_OFFSETS, groups.DeleteOffsetsRequest, groups.DeleteOffsetsResponse),
        Api(ApiKey.LIST_USERS, authenticate.ListUsersRequest, authenticate.ListUsersResponse),
        Api(ApiKey.ALTER_USERS, authenticate.AlterUsersRequest, authenticate.AlterUsersResponse),
        Api(ApiKey.CREATE_ACLS, acls.CreateAclsRequest, acls.CreateAclsResponse),
        Api(ApiKey.DELETE_ACLS, acls.DeleteAclsRequest, acls.DeleteAclsResponse),
        Api(ApiKey.DESCRIBE_ACLS, acls.DescribeAclsRequest, acls.DescribeAclsResponse),
        Api(ApiKey.CHECK_ACL, acls.CheckAclRequest, acls.CheckAclResponse),
        Api(ApiKey.END_TRANSACTION, transactions.EndTransactionRequest, transactions.EndTransactionResponse),
        Api(ApiKey.TXN_OFFSET_COMMIT, transactions.TxnOffsetCommitRequest, groups.OffsetCommitResponse),
        Api(ApiKey.LIST_TRANSACTIONS, transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
        Api(ApiKey.ABORT_TRANSACTION, transactions.AbortTransactionRequest, transactions.AbortTransactionResponse),
        Api(ApiKey.JOIN_JOB, jobs.JoinJobRequest, jobs.JoinJobResponse),
        Api(ApiKey.JOB_HEARTBEAT, jobs.JobHeartbeatRequest, jobs.JobHeartbeatResponse),
        Api(ApiKey.COMMIT_JOB, jobs.CommitJobRequest, jobs.CommitJobResponse),
        Api(ApiKey.ABORT_JOB_MEMBERS, jobs.AbortJobMembersRequest, jobs.AbortJobMembersResponse),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, quotas.DescribeClientQuotasRequest, quotas.DescribeClientQuotasResponse),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, quotas.AlterClientQuotasRequest, quotas.AlterClientQuotasResponse),
        Api(ApiKey.ALTER_BROKER_CONFIG, topics.AlterBrokerConfigRequest, topics.AlterBrokerConfigResponse),
        Api(ApiKey.FIND_SPLITS, splits.FindSplitsRequest, splits.FindSplitsResponse),
        Api(ApiKey.DESCRIBE_STATUS, inspection.DescribeStatusRequest, inspection.DescribeStatusResponse),
        Api(ApiKey.DESCRIBE_PARTITIONS, inspection.DescribePartitionsRequest, inspection.DescribePartitionsResponse),
        Api(ApiKey.TRACE_INDEX, inspection.TraceIndexRequest, inspection.TraceIndexResponse),
        Api(ApiKey.PEER_HELLO, replication.PeerHelloRequest, replication.PeerHelloResponse),
        Api(ApiKey.REPLICA_FETCH, replication.ReplicaFetchRequest, replication.ReplicaFetchResponse),
        Api(ApiKey.REPLICA_FLUSHED, replication.ReplicaFlushedRequest, replication.ReplicaFlushedResponse),
        Api(ApiKey.WRITE_MARKER, replication.WriteMarkerRequest, replication.WriteMarkerResponse),
        Api(ApiKey.ENROL_PARTITION, replication.EnrolPartitionRequest, replication.EnrolPartitionResponse),
        Api(ApiKey.ADD_PENDING_OFFSETS, replication.AddPendingOffsetsRequest, groups.OffsetCommitResponse),
        Api(ApiKey.END_PENDING_OFFSETS, replication.EndPendingOffsetsRequest, replication.EndPendingOffsetsResponse),
        Api(ApiKey.COMMIT_OFFSETS_ELSEWHERE, replication.CommitOffsetsElsewhereRequest, groups.OffsetCommitResponse),
    )
}
"""Every API that broker and client speak, by its key."""

API_OF_REQUEST: dict[type[Message], Api] = {api.request: api for api in APIS.values()}
