"""The command `toolkit hmm`."""

from pathlib import Path

import click

from toolkit.config.click_types import AS_JSON, TEXT_IN, TEXT_OUT


@click.group()
def hmm() -> None:
    """Inspect HMM systems and their phonetic decision trees.

    \b
    Example:
      toolkit hmm show-tree exp/demo/tri --phone AH
    """


@hmm.command("show-tree")
@click.argument("model", metavar="MODEL_OR_TREE", type=TEXT_IN)
@click.option("--phone", required=True, help="A phone, or a base phone: AH selects AH0, AH1, ...")
@click.option("--state", type=int, help="Draw only the tree of this HMM state, counted from 0.")
@click.option(
    "--dot", "dot_file", type=TEXT_OUT, help="Also write the tree to this file, for Graphviz."
)
@AS_JSON
def show_tree(
    model: Path, phone: str, state: int | None, dot_file: Path | None, as_json: bool
) -> None:
    """Draw the decision tree of a phone.

    Prints each question with its gain in log-likelihood, the number of frames in each branch, and
    the pdfs at the leaves. MODEL_OR_TREE is the folder of a GMM system or its tree.json. With
    --json, prints the part of tree.json for this phone.

    \b
    Example:
      toolkit hmm show-tree exp/demo/tri --phone AH --state 1 --dot ah.dot
    """
    from toolkit.hmm.tree import Tree, to_json
    from toolkit.hmm.tree_drawing import dot, draw, roots_of
    from toolkit.storage.files import write_atomically

    tree = Tree.load(model / "tree.json" if model.is_dir() else model)
    # One tree per HMM state. A base phone (AH) selects the trees of all its variants (AH0, AH1,
    # ...).
    roots = roots_of(tree, phone, state)
    if as_json:
        click.echo(to_json(tree.phones, tuple(roots)), nl=False)
    else:
        click.echo(draw(tree, roots))
    if dot_file is not None:
        write_atomically(dot_file, dot(tree, roots))
