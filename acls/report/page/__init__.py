"""The report page: one self-contained HTML file about runs, studies or files of predictions, readable offline."""
