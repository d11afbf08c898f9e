"""Valid files, damaged: hypothesis strategies over bytes, by what the bytes are."""

import io
import json
import re
import tarfile

from hypothesis import strategies as st

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
NUMBERS = (
    *(b"nan", b"inf", b"-inf", b"-1", b"0", b"1e400", b"-1e308", b"1e-320", b"0x10", b"1_000"),
    *(b"2147483648", b"9223372036854775808", b"9" * 400, b"9" * 5000, b"", b"NaN", b"1,5", b"12x"),
    "٣".encode(),  # a digit, in Arabic
)
VALUES = (
    *("null", "true", "-1", "0", "1.5", "1e400", "NaN", "-Infinity", "1e308", "9" * 400),
    *("9" * 5000, "2147483648", "4611686018427387904", '""', '"x"', '"../../x"', '"/etc/passwd"'),
    *('"a b\\tc"', '"\\ud800"', '"\\u0000"', "[]", "{}", "[[]]", "[1]", '{"x": 1}', "[" * 5000),
    *("[" * 5000 + "]" * 5000, "{}}", "'", '"I32"', '"F64"', '"BF16"', '"F8_E4M3"', '"U64"'),
)
"""JSON, or not quite, to put in the place of any value."""
BYTES = (b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\0" * 600, b"\xe9", b"\x80\x80", b"\r\n", b"\n\n")
SHAPES = ("[]", "[0]", "[1]", "[-1]", "[4611686018427387904, 4]", "[2, 0]", "[1, 1, 1]", "[3, 2]")
MEMBERS = ("../../escaped.npy", "/escaped.npy", "", "x" * 300, "a/b.npy", "a.npy\n", "a.json")
ARRAYS = (
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f2', 'fortran_order': False, 'shape': (99999999999, 99999), }",
    "{'descr': '<f8', 'fortran_order': True, 'shape': (1, 2), }",
    "{'descr': '<f2', 'fortran_order': False, 'shape': (-1, 3), }",
    "{'descr': '<f2', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<f2', 'fortran_order': False, 'shape': (0, 3), }",
    "{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<c16', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '>i4', 'fortran_order': False, 'shape': (2, 2), }",
    "((((((((((((((((((((((((((((((((((((((((((((((((",
    "__import__('os').mkdir('executed')",
)


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """One to three faults in a file, such as its format invites and such as any may have."""
    for _ in range(draw(st.integers(1, 3))):
        ways = [_cut, _flip, _junk, _insert, _remove, _repeat]
        if content[:1] in (b"{", b"["):
            ways += 6 * [_json]
        elif content[8:9] == b"{":
            ways += 8 * [_safetensors]
        elif content[257:262] == b"ustar":
            ways += 6 * [_tar] + 4 * [_array]
        elif content[:6] == b"\x93NUMPY":
            ways += 8 * [_array]
        if b"\0" not in content:
            ways += [_line_ends, _encoding, _long] + 3 * [_lines] + 5 * [_number]
        content = draw(st.sampled_from(ways))(draw, content)
    return content


def _place(draw, content):
    return draw(st.integers(0, len(content)))


def _span(draw, content):
    begin = _place(draw, content)
    return begin, min(len(content), begin + draw(st.integers(1, 64)))


def _cut(draw, content):
    return content[: _place(draw, content)]


def _flip(draw, content):
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        if found:
            found[draw(st.integers(0, len(found) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(found)


def _junk(draw, content):
    return draw(st.binary(max_size=100))


def _insert(draw, content):
    place = _place(draw, content)
    added = draw(st.one_of(st.sampled_from(BYTES), st.binary(min_size=1, max_size=20)))
    return content[:place] + added + content[place:]


def _remove(draw, content):
    begin, end = _span(draw, content)
    return content[:begin] + content[end:]


def _repeat(draw, content):
    begin, end = _span(draw, content)
    return content[:end] + content[begin:end] * draw(st.integers(1, 40)) + content[end:]


def _line_ends(draw, content):
    return content.replace(b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"", b" \t\n", b"\v\n"])))


def _encoding(draw, content):
    text = content.decode("utf-8", "replace")
    kinds = ("utf-8-sig", "utf-16", "utf-32", "cp037")
    return text.encode(draw(st.sampled_from(kinds)), "replace")


def _long(draw, content):
    place = _place(draw, content)
    return content[:place] + draw(st.sampled_from([b"x", b" ", b"("])) * 70000 + content[place:]


def _lines(draw, content):
    lines = content.split(b"\n")
    first, second = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    way = draw(st.sampled_from(["drop", "copy", "swap", "blank", "join", "first field"]))
    if way == "drop":
        del lines[first]
    elif way == "copy":
        lines.insert(second, lines[first])
    elif way == "swap":
        lines[first], lines[second] = lines[second], lines[first]
    elif way == "blank":
        lines[first] = b" \t"
    elif way == "join":
        lines[first : first + 2] = [b" ".join(lines[first : first + 2])]
    else:
        lines[first] = lines[first].split(b" ")[0]
    return b"\n".join(lines)


def _number(draw, content):
    found = list(NUMBER.finditer(content))
    if not found:
        return content
    span = draw(st.sampled_from(found)).span()
    return content[: span[0]] + draw(st.sampled_from(NUMBERS)) + content[span[1] :]


def _json(draw, content):
    """A value in JSON, or in one line of several, replaced, left out or given twice."""
    try:
        return _json_text(draw, content.decode()).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        pass
    lines = content.split(b"\n")
    chosen = draw(st.integers(0, len(lines) - 1))
    try:
        text = _json_text(draw, lines[chosen].decode())
    except (ValueError, RecursionError):
        return content
    lines[chosen] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _json_text(draw, text):
    plain = json.loads(text)
    places = list(_places(plain))
    if not places:
        return draw(st.sampled_from(VALUES))
    holder, key = draw(st.sampled_from(places))
    inner, mark = holder[key], "\x1a"
    way = draw(st.sampled_from(["value", "value", "value", "drop", "twice", "number", "inside"]))
    if way == "drop" or (way == "twice" and isinstance(holder, list)):
        del holder[key]
        return json.dumps(plain)
    if way == "inside" and isinstance(inner, str) and inner[:1] in ("{", "["):
        holder[key] = _json_text(draw, inner)
        return json.dumps(plain)
    value = draw(st.sampled_from(VALUES))
    if way == "number":
        value = str(draw(st.integers(-3, 70)))
    if way == "twice":
        value = f"{json.dumps(inner)}, {json.dumps(key)}: {value}"
    holder[key] = mark
    return json.dumps(plain).replace(json.dumps(mark), value)


def _places(plain):
    if isinstance(plain, dict | list):
        for key in plain if isinstance(plain, dict) else range(len(plain)):
            yield plain, key
            yield from _places(plain[key])


def _safetensors(draw, content):
    size = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + size], content[8 + size :]
    way = draw(st.sampled_from(["json", "json", "json", "type", "shape", "size"]))
    if way == "json":
        header = _json(draw, header)
    elif way == "type":
        kind = draw(st.sampled_from([b"I32", b"F32", b"I64", b"F64", b"U8", b"BOOL", b"BF16"]))
        header = re.sub(rb'"dtype":"\w+"', b'"dtype":"' + kind + b'"', header, count=1)
    elif way == "shape":
        try:
            header = _reshaped(draw, header)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return content
    size = len(header) if way != "size" else draw(st.sampled_from([0, 1 << 40, (1 << 64) - 1]))
    return size.to_bytes(8, "little") + header + data


def _reshaped(draw, header):
    """A tensor with as many elements in another shape, or in one that cannot be."""
    plain = json.loads(header)
    entry = plain[draw(st.sampled_from(sorted(plain.keys() - {"__metadata__"})))]
    count = 1
    for length in entry["shape"]:
        count *= length
    same = [[count], [count, 1], [1, count], entry["shape"][::-1], [1, 1, count]]
    wrong = [json.loads(shape) for shape in SHAPES]
    entry["shape"] = draw(st.sampled_from(same + wrong))
    return json.dumps(plain).encode()


def _array(draw, content):
    """Another header in the place of a NumPy array's, as long as the old one."""
    found = list(re.finditer(rb"\{'descr': [^\n]*\n", content))
    if not found:
        return content
    old = draw(st.sampled_from(found))
    new = draw(st.sampled_from(ARRAYS)).encode()
    if len(new) >= len(old[0]):
        return content
    new = new.ljust(len(old[0]) - 1) + b"\n"
    return content[: old.start()] + new + content[old.end() :]


def _tar(draw, content):
    """The archive written anew with a member of another name, kind or content."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            members = [(m, (tar.extractfile(m) or io.BytesIO()).read()) for m in tar]
    except (tarfile.TarError, ValueError, EOFError, KeyError):
        return content
    if not members:
        return content
    chosen = draw(st.integers(0, len(members) - 1))
    member, data = members[chosen]
    way = draw(st.sampled_from(["name", "link", "content", "json", "drop", "copy", "size"]))
    if way == "name":
        member.name = draw(st.sampled_from(MEMBERS))
    elif way == "link":
        member.type = draw(st.sampled_from([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]))
        member.linkname, data = "/etc/passwd", b""
    elif way == "content":
        data = draw(damaged(data))
    elif way == "json" and data[:1] == b"{":
        data = _json(draw, data)
    elif way == "drop":
        del members[chosen]
    elif way == "copy":
        members.insert(draw(st.integers(0, len(members))), (member, data))
    if way not in ("drop", "copy"):
        members[chosen] = (member, data)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for place, (member, data) in enumerate(members):
            member.size = len(data)
            if way == "size" and place == chosen:
                member.size = draw(st.sampled_from([0, 1, 1 << 30, 1 << 50]))
                tar.fileobj.write(member.tobuf(tarfile.GNU_FORMAT) + data)
                break
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()
