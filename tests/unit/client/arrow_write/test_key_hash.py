"""Many keys at once get the numbers that zlib gives each of them."""

from itertools import accumulate
from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from warmlog.arrow_write.key_hash import LONGEST_BYTES, crc32_of_keys

short_keys = st.lists(st.binary(max_size=12))
alike_keys = st.integers(0, LONGEST_BYTES + 2).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size)))
long_keys = st.lists(
    st.one_of(st.binary(max_size=3), st.binary(min_size=LONGEST_BYTES - 1, max_size=LONGEST_BYTES + 9))
)


@given(keys=st.one_of(short_keys, alike_keys, long_keys), before=st.binary(max_size=5), is_wide=st.booleans())
def test_every_key_has_the_crc_that_zlib_computes(keys: list[bytes], before: bytes, is_wide: bool) -> None:
    ends = accumulate(map(len, keys), initial=len(before))
    offsets = np.array(list(ends), np.int64 if is_wide else np.int32)
    content = np.frombuffer(before + b"".join(keys) + b"after", np.uint8)
    assert crc32_of_keys(offsets, content).tolist() == [crc32(key) for key in keys]
