import pytest

from toolkit.storage.paths import map_path, parse_mapping, suggestion


@pytest.mark.parametrize(
    ("path", "mapped"),
    [
        ("/old/a.wav", "/new/a.wav"),
        ("/old", "/new"),
        ("/older/a.wav", "/older/a.wav"),
        ("/old/deep/a.wav", "/far/a.wav"),
        ("wav/a.wav", "/data/a.wav"),
        ("a.wav", "a.wav"),
    ],
)
def test_whole_folders_are_mapped_and_the_longest_counts(path, mapped):
    path_map = ("/old=/new", "/old/deep/=/far", "wav=/data/")
    assert map_path(path, path_map) == mapped
    assert map_path(path, ()) == path


@pytest.mark.parametrize(
    ("path", "mapped"),
    [
        ("C:\\Aufnahmen\\ann\\1.wav", "/data/ann/1.wav"),
        ("C:/Aufnahmen/ann/1.wav", "/data/ann/1.wav"),
        ("C:\\Aufnahmen2\\1.wav", "C:\\Aufnahmen2\\1.wav"),
        ("D:\\1.wav", "/disk/1.wav"),
        ("\\\\nas\\speech\\1.wav", "/nas/1.wav"),
        ("a\\1.wav", "a\\1.wav"),
    ],
)
def test_paths_of_windows_are_mapped(path, mapped):
    path_map = ("C:\\Aufnahmen=/data", "D:\\=/disk", "\\\\nas\\speech=/nas")
    assert map_path(path, path_map) == mapped


@pytest.mark.parametrize("mapping", ["/old", "=/new", "/old=", "/old=new"])
def test_invalid_mappings_are_refused(mapping):
    with pytest.raises(ValueError, match=r"OLD=NEW|absolute"):
        parse_mapping(mapping)


def test_the_folder_of_all_missing_files_is_suggested():
    assert "--map-path /home/ann/wav=NEW" in suggestion(
        ["/home/ann/wav/x/1.wav", "/home/ann/wav/y/2.wav", "utt-3"]
    )
    assert "--map-path '/a b=NEW' " in suggestion(["/a b/1.wav"])
    windows = ["C:\\Rec\\x\\1.wav", "C:\\Rec\\y\\2.wav"]
    assert "--map-path C:/Rec=NEW" in suggestion(windows)
    assert suggestion([*windows, "/a/1.wav"]) == suggestion(["C:\\1.wav", "D:\\2.wav"]) == ""
    assert suggestion(["/a/1.wav", "/b/2.wav"]) == suggestion(["utt-3"]) == ""
