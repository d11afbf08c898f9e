import pytest
from click.testing import CliRunner

from toolkit import cli
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.kaldi.model import KaldiModelError
from toolkit.kaldi.senones import read_senones
from toolkit.kaldi.transitions import Transitions
from toolkit.kaldi.tree import tree_text
from toolkit.lang.tables import phone_table

PHONES = ("SIL", "SPN", "A_B", "A_E", "N_S")


def written(folder, topology):
    senones = Senones.monophone(topology)
    (folder / "tree").write_text(tree_text(senones.tree, topology))
    (folder / "model").write_text(Transitions(senones).text())
    phone_table(PHONES, 2).write(folder / "phones.txt")
    return senones, (folder / "tree", folder / "model", folder / "phones.txt")


@pytest.mark.parametrize("low_rate", [False, True])
def test_the_command_makes_the_senones_of_the_model(tmp_path, low_rate):
    topology = Topology(PHONES)
    topology = topology.at_low_rate() if low_rate else topology
    senones, files = written(tmp_path, topology)
    names = ("tree", "model", "phones")
    options = [f"--{name}={file}" for name, file in zip(names, files, strict=True)]
    command = ["kaldi", "import-senones", *options, f"--out={tmp_path / 'out'}"]
    done = CliRunner().invoke(cli.main, command)
    assert done.exit_code == 0, done.output
    assert "5 phones, " in done.output
    found = Senones.load(tmp_path / "out")
    assert found.topology.phones == PHONES
    sizes = [found.topology.num_states(phone) for phone in found.topology.phone_ids()]
    assert sizes == [topology.num_states(phone) for phone in topology.phone_ids()]
    assert found.table[:, 1:, 1:].tolist() == senones.table[:, 1:, 1:].tolist()


def test_phones_that_mean_nothing_here_are_named(tmp_path):
    _, (tree, model, phones) = written(tmp_path, Topology(PHONES))
    text = phones.read_text()
    phones.write_text(text.replace("A_E 4\n", ""))
    with pytest.raises(KaldiModelError, match="has no phone 4"):
        read_senones(tree, model, phones)
    phones.write_text(text.replace("SIL 1\n", "sil 1\n"))
    with pytest.raises(KaldiModelError, match="has no phone SIL"):
        read_senones(tree, model, phones)
    phones.write_text(text.replace("SPN 2\n", "NSN 2\n"))
    with pytest.raises(KaldiModelError, match=r"phones of \[3, 5\] states"):
        read_senones(tree, model, phones)
