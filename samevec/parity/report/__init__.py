"""A verdict as a page, JUnit XML, files and a terminal table."""
