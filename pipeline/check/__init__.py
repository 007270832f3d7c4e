"""What is judged before a stage starts: rules, files, models, memory, data, code of the user's."""
