"""Record batches, in columns (magic 3) and in rows (magic 2): the bytes that a producer seals are stored and read.

`header` is common to both formats, `columns` and `rows` are their bodies, `batch` encodes, reads and converts whole
batches, `filtering` rewrites them.
"""

# All public names of these modules.
from warmlog_protocol.batch.batch import *
from warmlog_protocol.batch.column_data import *
from warmlog_protocol.batch.columns import *
from warmlog_protocol.batch.control import *
from warmlog_protocol.batch.filtering import *
from warmlog_protocol.batch.header import *
from warmlog_protocol.batch.int_column import *
from warmlog_protocol.batch.rows import *
from warmlog_protocol.codec.memory import Piece as Piece
