"""Tools that damage artifacts and kill processes."""
