import json


def test_a_stage_that_is_done_runs_again_under_the_profiler(sample):
    sample.main("--stop-stage", 2)
    first = json.loads((sample.exp / "stages/02.json").read_text())
    result = sample.main("--profile-stage", 2)
    assert result.status == 0, result.output
    assert "where the time went: " in result.output
    assert "2 Build the lexicon" in (sample.exp / "profiles/02.svg").read_text()
    assert (sample.exp / "profiles/02.folded").exists()
    assert "Train the model" not in result.output
    again = json.loads((sample.exp / "stages/02.json").read_text())
    assert again["started"] >= first["started"]
    assert again["outputs"] == first["outputs"]
    assert [row["state"] for row in json.loads(sample.main("--list", "--json").output)][:2] == [
        "done",
        "done",
    ]


def test_the_time_is_in_the_stages_function(sample):
    sample.main("--stop-stage", 2)
    sample.main("--profile-stage", 3, env={"EPOCH_SECONDS": "0.1"})
    lines = (sample.exp / "profiles/03.folded").read_text().splitlines()
    spent = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
    inside = sum(t for stack, t in spent.items() if stack.startswith("this process;train ("))
    assert inside > 0.25e6  # four epochs of 0.1 s sleep
    assert inside > 0.8 * sum(spent.values())


def test_an_interrupted_stage_goes_on_and_a_failed_one_has_a_profile(sample):
    sample.main("--stop-stage", 2)
    fault = {"FAULT": "3:middle:value"}
    assert sample.main("--profile-stage", 3, env=fault).status == 1
    assert (sample.exp / "profiles/03.svg").exists()
    done = sample.main("--profile-stage", 3)
    assert done.status == 0
    assert "resuming the interrupted attempt" in done.output


def test_it_is_the_only_choice_of_stages(sample):
    for option in (("--stage", 1), ("--stop-stage", 3), ("--force", 2)):
        result = sample.main("--profile-stage", 2, *option)
        assert (result.status, "chooses the stage" in result.output) == (1, True)
    result = sample.main("--profile-stage", 4)
    assert "--profile-stage 4: no such stage" in result.output
