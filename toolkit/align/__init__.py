"""Forced alignment: graphs, stores, corpora, recordings; GMM training, which alternates with it."""
