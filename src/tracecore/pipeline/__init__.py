"""Everything wired together: the offline diagnosis and the running agent."""
