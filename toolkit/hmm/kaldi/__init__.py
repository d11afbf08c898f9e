"""Topologies, trees and transition ids as Kaldi has them."""
