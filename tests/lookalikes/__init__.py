"""Writers of small files in the true layouts of published data sets and formats."""
