import io
import os

from hypothesis import given
from hypothesis import strategies as st

from toolkit.corpus.splice import splice

CONTENT = bytes(range(256))
PIECES = st.lists(
    st.binary(max_size=9)
    | st.tuples(st.integers(0, 256), st.integers(0, 256)).map(lambda pair: tuple(sorted(pair))),
    min_size=1,
    max_size=5,
)


@given(PIECES, st.lists(st.tuples(st.integers(0, 600), st.integers(0, 300)), max_size=5))
def test_any_part_is_that_of_the_joined_pieces(pieces, reads):
    joined = b"".join(p if isinstance(p, bytes) else CONTENT[p[0] : p[1]] for p in pieces)
    file = splice(io.BytesIO(CONTENT), pieces)
    assert file.read() == joined
    for position, size in reads:
        assert file.seek(position) == file.tell() == position
        assert file.read(size) == joined[position : position + size]
    assert file.seek(0, os.SEEK_END) == len(joined)
