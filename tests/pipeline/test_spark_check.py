"""Requirements of Spark are checked before anything starts."""

import shutil

import pytest

from toolkit.pipeline import spark


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without Java and pyspark; returns its folder of programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(spark, "find_spec", lambda name: None)
    return tmp_path


def program(path):
    path.parent.mkdir(exist_ok=True)
    path.touch()
    path.chmod(0o755)


def test_missing_requirements_are_named_with_what_to_do(machine, monkeypatch):
    with pytest.raises(spark.SparkError, match=r"pyspark and Java .*pip install -e .*Java 17"):
        spark.check_spark()
    program(machine / "java")
    with pytest.raises(spark.SparkError, match="because pyspark cannot be found"):
        spark.check_spark()
    monkeypatch.setattr(spark, "find_spec", lambda name: name)
    spark.check_spark()


def test_java_home_decides_where_java_is(machine, monkeypatch):
    monkeypatch.setattr(spark, "find_spec", lambda name: name)
    monkeypatch.setenv("JAVA_HOME", str(machine))
    program(machine / "java")
    with pytest.raises(spark.SparkError, match="because Java cannot be found"):
        spark.SparkExecutor()
    program(machine / "bin" / "java")
    assert shutil.which("java")
    spark.check_spark()
