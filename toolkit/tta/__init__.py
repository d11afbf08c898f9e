"""Time to accuracy of training runs: tables, figures and an HTML page (A26-A39)."""
