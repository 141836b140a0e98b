"""Knowledge about text: OTTL statements in the shape of the Collector's transform processor."""
