"""HMM topologies, phonetic decision trees, Gaussian mixtures and feature transforms."""
