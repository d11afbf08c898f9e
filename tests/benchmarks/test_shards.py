from benchmarks.shards import benchmark


def test_a_folder_and_stores_are_read_to_the_end():
    table = benchmark(hours=0.1, shard_hours=0.03, latencies=(0.01, 0.02), repeats=1)
    names = ["folder", "store, 10 ms per object", "store, 20 ms per object"]
    assert [row.name for row in table.rows] == names
    assert min(row.rate for row in table.rows) > 0
    assert "0.1 h in shards of 0.03 h" in table.notes[0]
