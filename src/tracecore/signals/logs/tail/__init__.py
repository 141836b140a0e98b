"""Files that grow, rotate, are cut off and vanish, read so that nothing is lost and nothing is read twice."""
