"""Where documents come from: hubs, local trees and caches; JSON lines and Parquet."""
