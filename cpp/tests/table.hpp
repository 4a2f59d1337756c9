// Reads the conformance table: lines that are JSON arrays of strings, whose characters stand for bytes.

#ifndef TABLE_HPP
#define TABLE_HPP

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

using Words = std::vector<std::string>;

struct Step {
    unsigned line;
    Words operation;
    Words answer;
};

struct Case {
    std::string name;
    std::vector<Step> steps;
};

[[noreturn]] inline void broken(const std::string &what) {
    std::cerr << "the table cannot be run: " << what << "\n";
    std::exit(2);
}

// Reads the JSON string that begins at `at`, a quote, and moves behind it.
inline std::string read_string(const std::string &line, size_t &at) {
    static const std::string names = "nrtbf\"\\/", stands_for = "\n\r\t\b\f\"\\/";
    std::string bytes;
    for (at++; at < line.size() && line[at] != '"'; at++) {
        if (line[at] != '\\') {
            bytes += line[at];
        } else if (line[++at] == 'u') {
            bytes += static_cast<char>(std::stoul(line.substr(at + 1, 4), nullptr, 16));
            at += 4;
        } else {
            bytes += stands_for.at(names.find(line[at]));
        }
    }
    at++;
    return bytes;
}

inline std::vector<Case> read_table(const std::string &path) {
    std::ifstream file(path);
    if (!file) broken("cannot open " + path);
    std::vector<Case> cases;
    std::string line;
    for (unsigned number = 1; std::getline(file, line); number++) {
        Words words;
        for (size_t at = 0; at < line.size();) {
            if (line[at] == '"') {
                words.push_back(read_string(line, at));
            } else {
                at++;
            }
        }
        if (words.empty()) continue;
        if (words.size() == 2 && words[0] == "case") {
            cases.push_back({words[1], {}});
            continue;
        }
        Step step{number, {}, {}};
        bool behind = false;
        for (std::string &word : words) {
            if (!behind && word == "=>") {
                behind = true;
            } else {
                (behind ? step.answer : step.operation).push_back(std::move(word));
            }
        }
        if (cases.empty() || step.answer.empty()) broken(path + ", line " + std::to_string(number));
        cases.back().steps.push_back(std::move(step));
    }
    return cases;
}

inline std::string show(const Words &words) {
    static const char digits[] = "0123456789abcdef";
    std::string text;
    for (const std::string &word : words) {
        text += text.empty() ? "\"" : " \"";
        for (unsigned char c : word) {
            if (c >= 32 && c < 127) {
                text += static_cast<char>(c);
            } else {
                text += std::string("\\x") + digits[c >> 4] + digits[c & 15];
            }
        }
        text += '"';
    }
    return text;
}

#endif
