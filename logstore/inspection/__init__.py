"""Tools for a stopped store: they check journals and tables, say what is lost, and rebuild or convert a table."""
