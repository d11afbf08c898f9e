import pytest

from toolkit.lang.tables import SymbolTable, TableError, phone_table, word_table


def test_phones():
    table = phone_table({"T", "SIL", "AH", "SPN"}, num_disambig=2)
    assert list(table) == ["<eps>", "SIL", "SPN", "AH", "T", "#0", "#1"]
    assert [table[symbol] for symbol in table] == list(range(7))


def test_words():
    table = word_table(["B", "A", "<UNK>", "'TIS"])
    assert list(table) == ["<eps>", "'TIS", "A", "B", "<UNK>", "#0", "<s>", "</s>"]


def test_written_and_read_back(tmp_path):
    table = word_table(["B", "A"])
    table.write(tmp_path / "words.txt")
    assert (tmp_path / "words.txt").read_text().startswith("<eps> 0\nA 1\nB 2\n<UNK> 3\n")
    assert SymbolTable.read(tmp_path / "words.txt") == table


def test_gaps_are_allowed(tmp_path):
    (tmp_path / "t.txt").write_text("b 7\n\na\t2\n")
    table = SymbolTable.read(tmp_path / "t.txt")
    assert list(table) == ["a", "b"]
    assert table.symbol(7) == "b"
    assert table.get("c", -1) == -1


def test_only_white_space_of_ascii_ends_a_symbol(tmp_path):
    (tmp_path / "t.txt").write_text("a\u00a0b 1\n\u3000\t2 \r\n", "utf-8")
    assert {*SymbolTable.read(tmp_path / "t.txt")} == {"a\u00a0b", "\u3000"}


@pytest.mark.parametrize("line", ["c", "c 1", "a 3", "c x", "c 1 2", "c -1"])
def test_errors_name_the_line(tmp_path, line):
    (tmp_path / "t.txt").write_text(f"a 0\nb 1\n{line}\n")
    with pytest.raises(TableError, match=r"t\.txt:3"):
        SymbolTable.read(tmp_path / "t.txt")


def test_unknown_symbols_are_named():
    table = SymbolTable.of(["<eps>"])
    with pytest.raises(TableError, match="'A'"):
        table["A"]
    with pytest.raises(TableError, match="5"):
        table.symbol(5)


def test_reserved_names_are_refused():
    with pytest.raises(TableError, match="'<eps>' occurs twice"):
        phone_table(["AH", "<eps>"], num_disambig=1)
