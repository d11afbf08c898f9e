"""HTML reports of runs, and the charts, tables and figures of HTML pages."""
