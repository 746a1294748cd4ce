"""All requests and responses of the wire protocol, and the table that joins them.

A message is a tuple of positional fields: msgpack arrays, in the order written here. A field may be added at the end
of a class, with a default; none is ever moved or removed. A reader ignores unknown fields and uses the default for
those that an older peer did not send, so most changes need no new version.

Batches are not part of a message: Produce requests and Fetch responses name the byte count of each partition, and
the bytes follow the header as the frame's payload, in the same order (see frames.py).

Names and meanings are those of Kafka's APIs of the same key (https://kafka.apache.org/protocol) unless a class says
otherwise. Timestamps are milliseconds since 1970 (UTC), `-1` where there is none. Error codes are `errors.ErrorCode`.

If a client exceeds a quota, the broker carries out the request, and does not read the connection for a time after it.
`throttle_ms` of a response is that time: send nothing for as long.
"""

from warmlog_protocol.messages.access.acls import (
    ANY_NAME as ANY_NAME,
    ANY_PRINCIPAL as ANY_PRINCIPAL,
    CLUSTER_NAME as CLUSTER_NAME,
    AclBinding as AclBinding,
    AclFilter as AclFilter,
    CheckAclRequest as CheckAclRequest,
    CheckAclResponse as CheckAclResponse,
    CreateAclsRequest as CreateAclsRequest,
    CreateAclsResponse as CreateAclsResponse,
    CreatedAcl as CreatedAcl,
    DeleteAclsRequest as DeleteAclsRequest,
    DeleteAclsResponse as DeleteAclsResponse,
    DescribeAclsRequest as DescribeAclsRequest,
    DescribeAclsResponse as DescribeAclsResponse,
    Operation as Operation,
    ResourceType as ResourceType,
    USER_PREFIX as USER_PREFIX,
)
from warmlog_protocol.messages.access.authenticate import (
    AlteredUser as AlteredUser,
    AlterUserResult as AlterUserResult,
    AlterUsersRequest as AlterUsersRequest,
    AlterUsersResponse as AlterUsersResponse,
    AuthenticateRequest as AuthenticateRequest,
    AuthenticateResponse as AuthenticateResponse,
    ListedCredential as ListedCredential,
    ListedUser as ListedUser,
    ListUsersRequest as ListUsersRequest,
    ListUsersResponse as ListUsersResponse,
    UserChange as UserChange,
)
from warmlog_protocol.messages.access.quotas import (
    EVERY_OTHER as EVERY_OTHER,
    AlterClientQuotasRequest as AlterClientQuotasRequest,
    AlterClientQuotasResponse as AlterClientQuotasResponse,
    AlteredClientQuota as AlteredClientQuota,
    ClientQuota as ClientQuota,
    DescribeClientQuotasRequest as DescribeClientQuotasRequest,
    DescribeClientQuotasResponse as DescribeClientQuotasResponse,
    QuotaKey as QuotaKey,
    QuotaLimit as QuotaLimit,
)
from warmlog_protocol.messages.apis import (
    API_OF_REQUEST as API_OF_REQUEST,
    APIS as APIS,
    Api as Api,
    ErrorResponse as ErrorResponse,
)
from warmlog_protocol.messages.base import (
    ACKS_ALL as ACKS_ALL,
    ACKS_LEADER as ACKS_LEADER,
    ACKS_NONE as ACKS_NONE,
    CONSUMER_REPLICA_ID as CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID as DEBUGGING_REPLICA_ID,
    EARLIEST_TIMESTAMP as EARLIEST_TIMESTAMP,
    HIGH_WATERMARK as HIGH_WATERMARK,
    LATEST_TIMESTAMP as LATEST_TIMESTAMP,
    MAX_TIMESTAMP as MAX_TIMESTAMP,
    NO_LEADER_EPOCH as NO_LEADER_EPOCH,
    ApiKey as ApiKey,
    IsolationLevel as IsolationLevel,
    Message as Message,
)
from warmlog_protocol.messages.broker_config import (
    AlterBrokerConfigRequest as AlterBrokerConfigRequest,
    AlterBrokerConfigResponse as AlterBrokerConfigResponse,
)
from warmlog_protocol.messages.fetch import (
    AbortedTransaction as AbortedTransaction,
    DivergingEpoch as DivergingEpoch,
    FetchedPartition as FetchedPartition,
    FetchPartition as FetchPartition,
    FetchRequest as FetchRequest,
    FetchResponse as FetchResponse,
)
from warmlog_protocol.messages.coordinators.groups import (
    JOINING as JOINING,
    LEAVING as LEAVING,
    LEAVING_FOR_A_WHILE as LEAVING_FOR_A_WHILE,
    NO_COMMITTED_OFFSET as NO_COMMITTED_OFFSET,
    NO_MEMBER_EPOCH as NO_MEMBER_EPOCH,
    CommittedPartition as CommittedPartition,
    DeletedGroup as DeletedGroup,
    DeletedOffset as DeletedOffset,
    DeleteGroupsRequest as DeleteGroupsRequest,
    DeleteGroupsResponse as DeleteGroupsResponse,
    DeleteOffsetsRequest as DeleteOffsetsRequest,
    DeleteOffsetsResponse as DeleteOffsetsResponse,
    DescribedGroup as DescribedGroup,
    DescribeGroupsRequest as DescribeGroupsRequest,
    DescribeGroupsResponse as DescribeGroupsResponse,
    FetchedOffset as FetchedOffset,
    GroupHeartbeatRequest as GroupHeartbeatRequest,
    GroupHeartbeatResponse as GroupHeartbeatResponse,
    GroupMember as GroupMember,
    GroupListing as GroupListing,
    ListGroupsRequest as ListGroupsRequest,
    ListGroupsResponse as ListGroupsResponse,
    OffsetCommitPartition as OffsetCommitPartition,
    OffsetCommitRequest as OffsetCommitRequest,
    OffsetCommitResponse as OffsetCommitResponse,
    OffsetFetchRequest as OffsetFetchRequest,
    OffsetFetchResponse as OffsetFetchResponse,
    TopicPartitions as TopicPartitions,
)
from warmlog_protocol.messages.handshake import (
    ApiVersions as ApiVersions,
    HandshakeRequest as HandshakeRequest,
    HandshakeResponse as HandshakeResponse,
)
from warmlog_protocol.messages.log_dirs import (
    AlteredReplicaLogDir as AlteredReplicaLogDir,
    AlterReplicaLogDirsRequest as AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse as AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest as DescribeLogDirsRequest,
    DescribeLogDirsResponse as DescribeLogDirsResponse,
    LogDir as LogDir,
    LogDirReplica as LogDirReplica,
    ReplicaLogDir as ReplicaLogDir,
)
from warmlog_protocol.messages.metadata import (
    BrokerMetadata as BrokerMetadata,
    MetadataRequest as MetadataRequest,
    MetadataResponse as MetadataResponse,
    PartitionMetadata as PartitionMetadata,
    TopicMetadata as TopicMetadata,
)
from warmlog_protocol.messages.offsets import (
    DeletedRecords as DeletedRecords,
    DeleteRecordsPartition as DeleteRecordsPartition,
    DeleteRecordsRequest as DeleteRecordsRequest,
    DeleteRecordsResponse as DeleteRecordsResponse,
    EpochEndOffset as EpochEndOffset,
    ListedOffset as ListedOffset,
    ListOffsetsPartition as ListOffsetsPartition,
    ListOffsetsRequest as ListOffsetsRequest,
    ListOffsetsResponse as ListOffsetsResponse,
    OffsetForLeaderEpochPartition as OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest as OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse as OffsetForLeaderEpochResponse,
)
from warmlog_protocol.messages.produce import (
    InitProducerIdRequest as InitProducerIdRequest,
    InitProducerIdResponse as InitProducerIdResponse,
    ProducedPartition as ProducedPartition,
    ProducePartition as ProducePartition,
    ProduceRequest as ProduceRequest,
    ProduceResponse as ProduceResponse,
)
from warmlog_protocol.messages.splits import (
    FindSplitsPartition as FindSplitsPartition,
    FindSplitsRequest as FindSplitsRequest,
    FindSplitsResponse as FindSplitsResponse,
    FoundSplit as FoundSplit,
    FoundSplits as FoundSplits,
)
from warmlog_protocol.messages.topics import (
    AlteredTopic as AlteredTopic,
    AlterTopicResult as AlterTopicResult,
    AlterTopicsRequest as AlterTopicsRequest,
    AlterTopicsResponse as AlterTopicsResponse,
    ConfigValue as ConfigValue,
    CreatedPartitions as CreatedPartitions,
    CreatedTopic as CreatedTopic,
    CreatePartitionsRequest as CreatePartitionsRequest,
    CreatePartitionsResponse as CreatePartitionsResponse,
    CreateTopicsRequest as CreateTopicsRequest,
    CreateTopicsResponse as CreateTopicsResponse,
    DeletedTopic as DeletedTopic,
    DeleteTopicsRequest as DeleteTopicsRequest,
    DeleteTopicsResponse as DeleteTopicsResponse,
    DescribeConfigsRequest as DescribeConfigsRequest,
    DescribeConfigsResponse as DescribeConfigsResponse,
    DescribedConfigs as DescribedConfigs,
    NewPartitions as NewPartitions,
    NewTopic as NewTopic,
)
from warmlog_protocol.messages.coordinators.jobs import (
    AbortJobMembersRequest as AbortJobMembersRequest,
    AbortJobMembersResponse as AbortJobMembersResponse,
    CommitJobRequest as CommitJobRequest,
    CommitJobResponse as CommitJobResponse,
    JobHeartbeatRequest as JobHeartbeatRequest,
    JobHeartbeatResponse as JobHeartbeatResponse,
    JobMember as JobMember,
    JoinJobRequest as JoinJobRequest,
    JoinJobResponse as JoinJobResponse,
)
from warmlog_protocol.messages.coordinators.transactions import (
    AbortTransactionRequest as AbortTransactionRequest,
    AbortTransactionResponse as AbortTransactionResponse,
    EndTransactionRequest as EndTransactionRequest,
    EndTransactionResponse as EndTransactionResponse,
    ListTransactionsRequest as ListTransactionsRequest,
    ListTransactionsResponse as ListTransactionsResponse,
    JobDescription as JobDescription,
    ListedTransaction as ListedTransaction,
    TransactionPartition as TransactionPartition,
    TxnOffsetCommitRequest as TxnOffsetCommitRequest,
)
