"""HMM topologies in Kaldi's text form (`topo`)."""

from toolkit.hmm.topology import Topology


def transitions_of(topology: Topology, phone: int, state: int) -> list[int]:
    """The targets of a state's transitions, in order; the phone's end is its number of states."""
    ends = [topology.num_states(phone)] if state in topology.exit_states(phone) else []
    return [*topology.successors(phone, state), *ends]


def topology_text(topology: Topology) -> str:
    """The topology as Kaldi prints it, its states' transitions all equally likely.

    Each state has a pdf class of its own. Phones without a weight in their transitions, as here,
    have none in Kaldi: the probabilities are there because the form asks for them.
    """
    kinds: dict[bool, list[int]] = {}
    for phone in topology.phone_ids():
        kinds.setdefault(topology.is_silence(phone), []).append(phone)
    entries = "".join(_entry(topology, phones) for phones in kinds.values())
    return f"<Topology>\n{entries}</Topology>\n"


def _entry(topology: Topology, phones: list[int]) -> str:
    """The states that some phones, numbers in one line, have in common."""
    states = topology.num_states(phones[0])
    lines = ["<TopologyEntry>", "<ForPhones>", " ".join(map(str, phones)), "</ForPhones>"]
    for state in range(states):
        targets = transitions_of(topology, phones[0], state)
        arcs = " ".join(f"<Transition> {to} {1 / len(targets):.7g}" for to in targets)
        lines.append(f"<State> {state} <PdfClass> {state} {arcs} </State>")
    lines += [f"<State> {states} </State>", "</TopologyEntry>"]
    return "".join(f"{line}\n" for line in lines)
