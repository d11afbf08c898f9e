"""Damage valid files in ways that suit their format."""

import io
import json
import re
import tarfile

from tests.fuzz.choices import Choices

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
MEDIA = (
    *(b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b".snd", b"OggS", b"fLaC", b"ftyp"),
    *(b"#!AM", b"wvpk", b"\x1aE\xdf\xa3", b"0&\xb2u", b"ID3", b"\xff"),
)
"""What files of audio begin with, or have after their first size."""
ELEMENT = re.compile(
    rb"[A-Za-z\x20]{3}[A-Za-z0-9\x20]"  # chunks and boxes
    rb"|\x1aE\xdf\xa3|\x18S\x80g|\x1fC\xb6u|\x16T\xaek|\x15I\xa9f|\xae|\xe1|\xb5|\x9f|\x86|\xa3"
    rb"|c\xa2|\xff[\xe2-\xff]"  # Matroska's elements; frames of MPEG
)
SIZES = (0, 1, 7, 8, 24, 0x7F, 0xFF, 1 << 15, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
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


def damage(pick: Choices, content: bytes) -> bytes:
    """Return a file with one to three faults, typical of its format or of any file."""
    for _ in range(pick.number(1, 3)):
        ways = [_cut, _flip, _junk, _insert, _remove, _repeat]
        if content[:1] in (b"{", b"["):
            ways += 6 * [_json]
        elif content[8:9] == b"{":
            ways += 8 * [_safetensors]
        elif content[257:262] == b"ustar":
            ways += 6 * [_tar] + 4 * [_array]
        elif content[:6] == b"\x93NUMPY":
            ways += 8 * [_array]
        elif content[:4] == b"NIST":
            ways += 6 * [_number]
        elif any(content[4 * n : 4 * n + 4].startswith(MEDIA) for n in range(2)):
            ways += 6 * [_size] + 3 * [_moved]
        if b"\0" not in content:
            ways += [_line_ends, _encoding, _long] + 3 * [_lines] + 5 * [_number]
        content = pick.among(ways)(pick, content)
    return content


def _place(pick, content):
    return pick.number(0, len(content))


def _span(pick, content):
    begin = _place(pick, content)
    return begin, min(len(content), begin + pick.number(1, 64))


def _cut(pick, content):
    return content[: _place(pick, content)]


def _flip(pick, content):
    flipped = bytearray(content)
    for _ in range(pick.number(1, 6)):
        if flipped:
            flipped[pick.number(0, len(flipped) - 1)] ^= 1 << pick.number(0, 7)
    return bytes(flipped)


def _junk(pick, content):
    return pick.junk(0, 100)


def _insert(pick, content):
    place = _place(pick, content)
    added = pick.among((pick.among(BYTES), pick.junk(1, 20)))
    return content[:place] + added + content[place:]


def _remove(pick, content):
    begin, end = _span(pick, content)
    return content[:begin] + content[end:]


def _repeat(pick, content):
    begin, end = _span(pick, content)
    return content[:end] + content[begin:end] * pick.number(1, 40) + content[end:]


def _line_ends(pick, content):
    return content.replace(b"\n", pick.among([b"\r\n", b"\r", b"", b" \t\n", b"\v\n"]))


def _encoding(pick, content):
    text = content.decode("utf-8", "replace")
    kinds = ("utf-8-sig", "utf-16", "utf-32", "cp037")
    return text.encode(pick.among(kinds), "replace")


def _long(pick, content):
    place = _place(pick, content)
    return content[:place] + pick.among([b"x", b" ", b"("]) * 70000 + content[place:]


def _lines(pick, content):
    lines = content.split(b"\n")
    first, second = (pick.number(0, len(lines) - 1) for _ in range(2))
    way = pick.among(["drop", "copy", "swap", "blank", "join", "first field"])
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


def _number(pick, content):
    numbers = list(NUMBER.finditer(content))
    if not numbers:
        return content
    span = pick.among(numbers).span()
    return content[: span[0]] + pick.among(NUMBERS) + content[span[1] :]


def _json(pick, content):
    """Replace, remove or duplicate a value of JSON or of one line of JSON lines."""
    try:
        return _json_text(pick, content.decode()).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        pass
    lines = content.split(b"\n")
    chosen = pick.number(0, len(lines) - 1)
    try:
        text = _json_text(pick, lines[chosen].decode())
    except (ValueError, RecursionError):
        return content
    lines[chosen] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _json_text(pick, text):
    document = json.loads(text)
    places = list(_places(document))
    if not places:
        return pick.among(VALUES)
    holder, key = pick.among(places)
    inner, mark = holder[key], "\x1a"
    way = pick.among(["value", "value", "value", "drop", "twice", "number", "inside"])
    if way == "drop" or (way == "twice" and isinstance(holder, list)):
        del holder[key]
        return json.dumps(document)
    if way == "inside" and isinstance(inner, str) and inner[:1] in ("{", "["):
        holder[key] = _json_text(pick, inner)
        return json.dumps(document)
    value = pick.among(VALUES)
    if way == "number":
        value = str(pick.number(-3, 70))
    if way == "twice":
        value = f"{json.dumps(inner)}, {json.dumps(key)}: {value}"
    holder[key] = mark
    return json.dumps(document).replace(json.dumps(mark), value)


def _places(document):
    if isinstance(document, dict | list):
        for key in document if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _places(document[key])


def _safetensors(pick, content):
    size = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + size], content[8 + size :]
    way = pick.among(["json", "json", "json", "type", "shape", "size"])
    if way == "json":
        header = _json(pick, header)
    elif way == "type":
        kind = pick.among([b"I32", b"F32", b"I64", b"F64", b"U8", b"BOOL", b"BF16"])
        header = re.sub(rb'"dtype":"\w+"', b'"dtype":"' + kind + b'"', header, count=1)
    elif way == "shape":
        try:
            header = _reshaped(pick, header)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return content
    size = len(header) if way != "size" else pick.among([0, 1 << 40, (1 << 64) - 1])
    return size.to_bytes(8, "little") + header + data


def _reshaped(pick, header):
    """Give a tensor another shape of as many elements, or an invalid one."""
    document = json.loads(header)
    entry = document[pick.among(sorted(document.keys() - {"__metadata__"}))]
    count = 1
    for length in entry["shape"]:
        count *= length
    valid_shapes = [[count], [count, 1], [1, count], entry["shape"][::-1], [1, 1, count]]
    invalid_shapes = [json.loads(shape) for shape in SHAPES]
    entry["shape"] = pick.among(valid_shapes + invalid_shapes)
    return json.dumps(document).encode()


def _size(pick, content):
    """Change a number next to the name of an element: its size, rate, channels or flags."""
    names = [match.span() for match in ELEMENT.finditer(content[: 1 << 16])]
    if not names:
        return content
    begin, end = pick.among(names)
    width = pick.among([1, 2, 4, 8])
    place = max(0, pick.among([begin - width, end, end + 4, end + 8, end + pick.number(0, 40)]))
    number = pick.among([*SIZES, pick.number(0, 1 << 16)]) % (1 << 8 * width)
    number = pick.among([number, (1 << 8 * width) - 1 - number])
    written = number.to_bytes(width, pick.among(["big", "little"]))
    return content[:place] + written + content[place + width :]


def _moved(pick, content):
    """Remove, duplicate or move the bytes between two elements."""
    names = [match.start() for match in ELEMENT.finditer(content[: 1 << 16])]
    if len(names) < 3:
        return content
    first, second = sorted([pick.among(names), pick.among(names)])
    part, remainder = content[first:second], content[:first] + content[second:]
    place = pick.among(names)
    way = pick.among(["drop", "copy", "move", "whole"])
    if way == "drop":
        return remainder
    if way == "whole":
        return content + content[pick.among([0, first]) :]
    whole = content if way == "copy" else remainder
    return whole[:place] + part + whole[place:]


def _array(pick, content):
    """Replace the header of a NumPy array by another one of the same length."""
    headers = list(re.finditer(rb"\{'descr': [^\n]*\n", content))
    if not headers:
        return content
    old = pick.among(headers)
    new = pick.among(ARRAYS).encode()
    if len(new) >= len(old[0]):
        return content
    new = new.ljust(len(old[0]) - 1) + b"\n"
    return content[: old.start()] + new + content[old.end() :]


def _tar(pick, content):
    """Rewrite the archive with a member of another name, kind or content."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            members = [(m, (tar.extractfile(m) or io.BytesIO()).read()) for m in tar]
    except (tarfile.TarError, ValueError, EOFError, KeyError):
        return content
    if not members:
        return content
    chosen = pick.number(0, len(members) - 1)
    member, data = members[chosen]
    way = pick.among(["name", "link", "content", "json", "drop", "copy", "size"])
    if way == "name":
        member.name = pick.among(MEMBERS)
    elif way == "link":
        member.type = pick.among([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
        member.linkname, data = "/etc/passwd", b""
    elif way == "content":
        data = damage(pick, data)
    elif way == "json" and data[:1] == b"{":
        data = _json(pick, data)
    elif way == "drop":
        del members[chosen]
    elif way == "copy":
        members.insert(pick.number(0, len(members)), (member, data))
    if way not in ("drop", "copy"):
        members[chosen] = (member, data)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for place, (member, data) in enumerate(members):
            member.size = len(data)
            if way == "size" and place == chosen:
                member.size = pick.among([0, 1, 1 << 30, 1 << 50])
                tar.fileobj.write(member.tobuf(tarfile.GNU_FORMAT) + data)
                break
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()
