"""From stamped records to facts. Gate first: a record without a projector's attributes costs it nothing."""
