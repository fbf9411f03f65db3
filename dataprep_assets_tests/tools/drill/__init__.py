"""A drill: seeded faults on copies of finished artifacts of every pipeline, one at a time, and who noticed each."""
