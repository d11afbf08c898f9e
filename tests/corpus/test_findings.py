from toolkit.corpus.findings import FINDING_KINDS, Finding, write_findings


def test_white_space_in_ids_and_splits_does_not_shift_columns(tmp_path):
    finding = Finding(next(iter(FINDING_KINDS)), "dev\tmini", "u\t1\n", "what\tis\nwrong")
    write_findings([finding], tmp_path / "findings.tsv")
    head, row = (tmp_path / "findings.tsv").read_text().splitlines()
    columns = dict(zip(head.split("\t"), row.split("\t"), strict=True))
    assert (columns["split"], columns["id"], columns["detail"]) == (
        "dev mini",
        "u 1",
        "what is wrong",
    )
