"""Where bytes are kept and how they get there: ranged downloads and object stores."""
