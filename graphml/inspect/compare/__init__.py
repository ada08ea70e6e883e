"""Two runs of a model beside each other: values that are observed, their differences, what is tolerated."""
