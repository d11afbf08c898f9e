"""From graphs and scores to words: first pass, rescoring, confidence, bundles, transcription."""
