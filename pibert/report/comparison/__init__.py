"""The report of a comparison: tables, figures and the page that holds them."""
