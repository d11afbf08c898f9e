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


def test_the_folder_is_that_of_the_file_itself(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "run.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "run.py")
    assert Recipe("r", tmp_path / "link.py", {}).folder == (tmp_path / "real").resolve()
