import json

import pytest

from toolkit.tta.machine import PlatformError, Price, describe, read_prices


def test_the_machine_describes_itself_as_plain_data(tmp_path):
    about = describe(tmp_path)
    assert json.loads(json.dumps(about)) == about
    assert about["cpus"] >= 1
    assert about["memory_gib"] >= 1
    assert about["os"]
    assert about["devices"] == [] or about["devices"][0]["name"]
    assert about["storage"]
    assert describe(tmp_path / "not" / "there")["storage"] is not None
    assert describe()["storage"] is None


def test_prices_are_read_from_yaml_and_json(tmp_path):
    yaml_path, json_path = tmp_path / "platform.yaml", tmp_path / "platform.json"
    yaml_path.write_text("name: Sys1$\ntotal: 2605.29\ndevices: 1980\nas_of: 2019-10-01\n")
    assert read_prices(yaml_path) == [
        Price("Sys1$", total=2605.29, devices=1980, as_of="2019-10-01"),
    ]
    json_path.write_text('[{"name": "a", "per_hour": 2.5}, {"name": "b"}]')
    assert read_prices(json_path) == [Price("a", per_hour=2.5), Price("b")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\ntotl: 3\n", "unknown key `totl`; did you mean `total`"),
        ("name: a\ntotal: cheap\n", "'total' is not float (at least 0) or none"),
        ("name: a\ntotal: -1\n", "`total` is -1.0 but must be at least 0"),
        ("total: 3\n", "name"),
        ("just words\n", "expected `name: ...`"),
        ("name: [\n", "not plain YAML"),
    ],
)
def test_faults_name_the_file_and_the_key(tmp_path, text, message):
    path = tmp_path / "platform.yaml"
    path.write_text(text)
    with pytest.raises(PlatformError, match=r"platform\.yaml") as caught:
        read_prices(path)
    assert message in str(caught.value)
