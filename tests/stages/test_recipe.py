import pytest

from toolkit.stages.recipe import Recipe


def test_stages_are_declared_upwards(tmp_path):
    recipe = Recipe("r", tmp_path / "run.py", {})
    body = recipe.stage(2, "two")(lambda run: None)
    assert recipe.stages[0].body is body
    recipe.stage(5, "five")(lambda run: None)
    for number in (5, 3):
        with pytest.raises(ValueError, match="numbered upwards"):
            recipe.stage(number, "again")(lambda run: None)
    with pytest.raises(ValueError, match="numbered upwards"):
        Recipe("r", tmp_path / "run.py", {}).stage(-1, "minus")(lambda run: None)


def test_another_corpus_takes_the_same_stages(tmp_path):
    recipe = Recipe("first", tmp_path / "first" / "run.py", {"a": dict}, title="What it does")
    recipe.stage(1, "one")(lambda run: None)
    other = recipe.for_corpus(tmp_path / "second" / "run.py", {"b": dict})
    assert (other.name, other.title, list(other.profiles)) == ("second", "What it does", ["b"])
    assert other.directory("b") == tmp_path.resolve() / "second" / "exp" / "b"
    assert other.stages == recipe.stages
    other.stage(2, "two")(lambda run: None)
    assert len(recipe.stages) == 1


def test_the_folder_is_that_of_the_file_itself(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "run.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "run.py")
    assert Recipe("r", tmp_path / "link.py", {}).folder == (tmp_path / "real").resolve()
