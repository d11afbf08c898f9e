"""The offline demo corpus as a reader: it is made here, and read like LibriSpeech."""

from local import librispeech
from local.synthetic.corpus import fetch as fetch

manifests = librispeech.manifests
