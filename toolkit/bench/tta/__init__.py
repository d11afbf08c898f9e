"""Time to accuracy of trainings: tables, figures and one page (A26-A39)."""
