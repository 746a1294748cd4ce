"""The table that joins requests and responses, and the error response that any request may get."""

from msgspec import Struct

from warmlog_protocol.messages.access.acls import (
    CheckAclRequest,
    CheckAclResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from warmlog_protocol.messages.access.authenticate import (
    AlterUsersRequest,
    AlterUsersResponse,
    AuthenticateRequest,
    AuthenticateResponse,
    ListUsersRequest,
    ListUsersResponse,
)
from warmlog_protocol.messages.access.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from warmlog_protocol.messages.base import ApiKey, Message
from warmlog_protocol.messages.broker_config import AlterBrokerConfigRequest, AlterBrokerConfigResponse
from warmlog_protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteOffsetsRequest,
    DeleteOffsetsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from warmlog_protocol.messages.coordinators.jobs import (
    AbortJobMembersRequest,
    AbortJobMembersResponse,
    CommitJobRequest,
    CommitJobResponse,
    JobHeartbeatRequest,
    JobHeartbeatResponse,
    JoinJobRequest,
    JoinJobResponse,
)
from warmlog_protocol.messages.coordinators.transactions import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
)
from warmlog_protocol.messages.fetch import FetchRequest, FetchResponse
from warmlog_protocol.messages.handshake import HandshakeRequest, HandshakeResponse
from warmlog_protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from warmlog_protocol.messages.metadata import MetadataRequest, MetadataResponse
from warmlog_protocol.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from warmlog_protocol.messages.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from warmlog_protocol.messages.splits import FindSplitsRequest, FindSplitsResponse
from warmlog_protocol.messages.topics import (
    AlterTopicsRequest,
    AlterTopicsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)


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
    is_pipelined: bool = False
    """The next request on the connection may start before this one has its response."""
    finishes_first: bool = False
    """If the handler takes several turns, the next request starts after the last, so that batches keep their order."""

    @property
    def name(self) -> str:
        """As in the documentation: "CreateTopics"."""
        return self.request.__name__.removesuffix("Request")


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.HANDSHAKE, HandshakeRequest, HandshakeResponse),
        Api(ApiKey.AUTHENTICATE, AuthenticateRequest, AuthenticateResponse),
        Api(ApiKey.METADATA, MetadataRequest, MetadataResponse),
        Api(ApiKey.CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse),
        Api(ApiKey.DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse),
        Api(ApiKey.ALTER_TOPICS, AlterTopicsRequest, AlterTopicsResponse),
        Api(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest, CreatePartitionsResponse),
        Api(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest, DescribeConfigsResponse),
        Api(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse),
        Api(ApiKey.PRODUCE, ProduceRequest, ProduceResponse, is_pipelined=True, finishes_first=True),
        Api(ApiKey.FETCH, FetchRequest, FetchResponse, is_pipelined=True),
        Api(ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse),
        Api(ApiKey.DELETE_RECORDS, DeleteRecordsRequest, DeleteRecordsResponse),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
        Api(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest, DescribeLogDirsResponse),
        Api(ApiKey.OFFSET_COMMIT, OffsetCommitRequest, OffsetCommitResponse),
        Api(ApiKey.OFFSET_FETCH, OffsetFetchRequest, OffsetFetchResponse),
        Api(ApiKey.GROUP_HEARTBEAT, GroupHeartbeatRequest, GroupHeartbeatResponse, is_pipelined=True),
        Api(ApiKey.LIST_GROUPS, ListGroupsRequest, ListGroupsResponse),
        Api(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest, DescribeGroupsResponse),
        Api(ApiKey.DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse),
        Api(ApiKey.DELETE_OFFSETS, DeleteOffsetsRequest, DeleteOffsetsResponse),
        Api(ApiKey.LIST_USERS, ListUsersRequest, ListUsersResponse),
        Api(ApiKey.ALTER_USERS, AlterUsersRequest, AlterUsersResponse),
        Api(ApiKey.CREATE_ACLS, CreateAclsRequest, CreateAclsResponse),
        Api(ApiKey.DELETE_ACLS, DeleteAclsRequest, DeleteAclsResponse),
        Api(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest, DescribeAclsResponse),
        Api(ApiKey.CHECK_ACL, CheckAclRequest, CheckAclResponse),
        Api(ApiKey.END_TRANSACTION, EndTransactionRequest, EndTransactionResponse),
        Api(ApiKey.TXN_OFFSET_COMMIT, TxnOffsetCommitRequest, OffsetCommitResponse),
        Api(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest, ListTransactionsResponse),
        Api(ApiKey.ABORT_TRANSACTION, AbortTransactionRequest, AbortTransactionResponse),
        Api(ApiKey.JOIN_JOB, JoinJobRequest, JoinJobResponse),
        Api(ApiKey.JOB_HEARTBEAT, JobHeartbeatRequest, JobHeartbeatResponse),
        Api(ApiKey.COMMIT_JOB, CommitJobRequest, CommitJobResponse),
        Api(ApiKey.ABORT_JOB_MEMBERS, AbortJobMembersRequest, AbortJobMembersResponse),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest, DescribeClientQuotasResponse),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest, AlterClientQuotasResponse),
        Api(ApiKey.ALTER_BROKER_CONFIG, AlterBrokerConfigRequest, AlterBrokerConfigResponse),
        Api(ApiKey.FIND_SPLITS, FindSplitsRequest, FindSplitsResponse),
    )
}
"""Every API that broker and client speak, by its key."""

API_OF_REQUEST: dict[type[Message], Api] = {api.request: api for api in APIS.values()}
