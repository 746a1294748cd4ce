"""Both indexes keep what AbstractIndex promises."""

from unit.broker.storage.index.index_contract import IndexContract
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex


class TestOffsetIndex(IndexContract):
    index_class = OffsetIndex


class TestTimeIndex(IndexContract):
    index_class = TimeIndex
