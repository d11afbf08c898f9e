"""Time to accuracy of trainings: tables, figures and an HTML page (A26-A39)."""
