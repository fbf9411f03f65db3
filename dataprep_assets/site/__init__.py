"""The site: static pages with the state, history and contents of all datasets. Entry point: `build.write_site`."""
