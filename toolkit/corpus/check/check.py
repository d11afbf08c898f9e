"""Find every fault of a corpus before anything expensive runs on it."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.check.audio_info import AudioInfo, read_audio_info
from toolkit.corpus.check.exclusions import Exclusion, write_exclusions
from toolkit.corpus.check.findings import ERROR, KINDS, WARNING, Finding, is_train
from toolkit.corpus.check.report import SplitSummary, write_oov, write_report
from toolkit.corpus.check.utterances import FeatureFaults, SplitChecker, between_splits
from toolkit.corpus.config import CheckConfig
from toolkit.corpus.manifest import audio_of, has_audio, read_cuts, speaker_of, text_of
from toolkit.errors import ToolkitError
from toolkit.storage.digests import FileDigest
from toolkit.storage.words import split_words

logger = logging.getLogger(__name__)
MOST_KINDS = 6
"""Of faults that the warning names."""


class CorpusError(ToolkitError):
    """A split with too many faults to go on."""


def check(
    splits: Mapping[str, Path],
    lexicon: Mapping[str, int],
    out: Path,
    config: CheckConfig,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    remember: Callable[[str, FileDigest], None] | None = None,
    feature_faults: FeatureFaults | None = None,
) -> dict[str, float]:
    """Check all splits in one pass over the audio; write reports and the utterances to exclude.

    Args:
      splits: manifests (`toolkit.corpus.manifest.write_cuts`) by split.
      lexicon: smallest number of phones of each word that has a pronunciation.
      out: folder for report.txt (to read), report.json (everything), findings.tsv (all findings),
        oov.tsv (split, word, count, utterances) and excluded.tsv, which `read_cuts` takes.
      jobs: processes that decode audio.
      progress: called with (files decoded, files).
      remember: called with the path and the digest of every file that was read.
      feature_faults: what is wrong with the features of a corpus that has features instead of
        audio, see `toolkit.kaldi.feature_check`; None: it has audio, which is decoded.

    Returns:
      Numbers of utterances, excluded ones, errors and warnings, the OOV rate in percent, and the
      hours of training speech.

    Raises:
      CorpusError: no utterance of a split is left, or more than `config.min_excluded` and more
        than the share `config.max_excluded` are excluded. The reports are written all the same.
    """
    cuts = {split: read_cuts(path) for split, path in splits.items()}
    readable = (
        audio_of(cut)
        for part in cuts.values()
        for cut in part
        if "fault" not in (cut.custom or {}) and has_audio(cut)
    )
    info = read_audio_info(readable, jobs, progress)
    for item in info.values():
        if remember is not None and item.file is not None:
            remember(item.path, item.file)
    findings: list[Finding] = []
    summaries: list[SplitSummary] = []
    oov: dict[str, dict[str, list[str]]] = {}
    for split, part in cuts.items():
        checker = SplitChecker(split, info, lexicon, config, feature_faults)
        own = [finding for cut in part for finding in checker.check(cut)]
        findings += own
        oov[split] = checker.oov
        summaries.append(_summary(split, part, info, own, checker))
    findings += between_splits(cuts, info)
    exclusions = _exclusions(findings)
    write_exclusions(exclusions, out / "excluded.tsv")
    write_oov(oov, out / "oov.tsv")
    write_report(summaries, findings, oov, config, out)
    _warn(findings)
    for summary in summaries:
        _check_excluded(summary, exclusions, config, out)
    total = sum(summary.utterances for summary in summaries)
    tokens = sum(summary.tokens for summary in summaries)
    severities = Counter(KINDS[finding.kind].severity for finding in findings)
    return {
        "utterances": total,
        "excluded": len(exclusions),
        "errors": severities[ERROR],
        "warnings": severities[WARNING],
        "oov_percent": round(100 * sum(s.oov_tokens for s in summaries) / max(tokens, 1), 2),
        "hours_train": round(sum(sum(s.seconds) for s in summaries if is_train(s.split)) / 3600, 2),
    }


def _warn(findings: list[Finding]) -> None:
    """Say how many faults there are of which kinds."""
    counts = Counter(f.kind for f in findings if KINDS[f.kind].severity in (ERROR, WARNING))
    if counts:
        shown = [f"{count} {kind}" for kind, count in counts.most_common(MOST_KINDS)]
        more = len(counts) - len(shown)
        shown += [f"{more} kinds more"] if more > 0 else []
        logger.warning("%s: remedies in check/report.txt, all in findings.tsv", ", ".join(shown))


def _exclusions(findings: list[Finding]) -> list[Exclusion]:
    """Merge the findings that exclude an utterance into one line each."""
    reasons: dict[tuple[str, str, int], list[str]] = {}
    for finding in findings:
        if finding.excluded:
            key = (finding.split, finding.id, finding.copy)
            reasons.setdefault(key, []).append(f"{finding.kind}: {finding.detail}")
    return [Exclusion(*key, "; ".join(texts)) for key, texts in reasons.items()]


def _summary(
    split: str,
    part: list[MonoCut],
    info: Mapping[str, AudioInfo],
    findings: list[Finding],
    checker: SplitChecker,
) -> SplitSummary:
    known = [info[audio_of(cut)] for cut in part if audio_of(cut) in info]
    return SplitSummary(
        split=split,
        utterances=len(part),
        excluded=len({(f.id, f.copy) for f in findings if f.excluded}),
        speakers=len({speaker_of(cut) for cut in part}),
        seconds=sorted(cut.duration for cut in part if cut.duration > 0),
        tokens=checker.tokens,
        types=len({word for cut in part for word in split_words(text_of(cut))}),
        oov_tokens=sum(map(len, checker.oov.values())),
        oov_types=len(checker.oov),
        formats=Counter((item.sampling_rate, item.channels) for item in known if item.decoded),
    )


def _check_excluded(
    summary: SplitSummary, exclusions: list[Exclusion], config: CheckConfig, out: Path
) -> None:
    """Raise CorpusError for a split with too many excluded utterances."""
    lost, total = summary.excluded, summary.utterances
    if lost < total and (lost <= config.min_excluded or lost <= config.max_excluded * total):
        return
    kinds = Counter(
        item.reason.partition(":")[0] for item in exclusions if item.split == summary.split
    )
    why = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
    raise CorpusError(
        f"{lost} of {total} utterances of {summary.split!r} cannot be used"
        f" ({why or 'it is empty'}): read {out / 'report.txt'}, correct them, or raise"
        f" check.max_excluded ({config.max_excluded:g})"
    )
