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

# All public names of these modules are messages, their items and constants.
from warmlog_protocol.messages.access.acls import *
from warmlog_protocol.messages.access.authenticate import *
from warmlog_protocol.messages.access.quotas import *
from warmlog_protocol.messages.apis import *
from warmlog_protocol.messages.base import *
from warmlog_protocol.messages.coordinators.finding import *
from warmlog_protocol.messages.coordinators.groups import *
from warmlog_protocol.messages.coordinators.jobs import *
from warmlog_protocol.messages.coordinators.transactions import *
from warmlog_protocol.messages.fetch import *
from warmlog_protocol.messages.inspection import *
from warmlog_protocol.messages.log_dirs import *
from warmlog_protocol.messages.metadata import *
from warmlog_protocol.messages.offsets import *
from warmlog_protocol.messages.produce import *
from warmlog_protocol.messages.replicas import *
from warmlog_protocol.messages.replication import *
from warmlog_protocol.messages.splits import *
from warmlog_protocol.messages.topics import *
