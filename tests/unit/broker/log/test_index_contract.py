"""Both indexes keep what AbstractIndex promises."""

from unit.broker.log.index_contract import IndexContract
from warmlog_broker.log.offset_index import OffsetIndex
from warmlog_broker.log.time_index import TimeIndex


class TestOffsetIndex(IndexContract):
    index_class = OffsetIndex


class TestTimeIndex(IndexContract):
    index_class = TimeIndex
