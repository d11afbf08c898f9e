"""Reader of the offline demo corpus, which is synthesised here and read like LibriSpeech."""

from local import librispeech
from local.synthetic.corpus import fetch as fetch

manifests = librispeech.manifests
