"""NIST's grammar of transcripts, file formats, mapping rules and reports."""
